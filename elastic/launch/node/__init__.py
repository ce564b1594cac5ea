"""What becomes of a node: who says that its machine is taken, how it leaves, and with which status its agent ends.

notices   what says so, heard in the agent's loop; hints, at which the run saves; --on-notice
node_end  when the node leaves, how long its workers may take, and the agent's exit status
kubeflow  the run's progress, where the node is one of a TrainJob
metrics   --metrics-port: figures of the node, over HTTP
"""
