"""What becomes of a node: who says that its machine is taken, how it leaves, and with which status its agent ends.

notices      what says so, heard in the agent's loop
notice_hook  --on-notice
hints        the run saves, and nobody leaves
departure    when the node leaves, why, and how long its workers may take
end          the agent's exit status
kubeflow     the run's progress, where the node is one of a TrainJob
metrics      --metrics-port: figures of the node, over HTTP
"""
