"""Which examples a step reads, as a pure function, and reading them: ahead of the loop, in processes, from files.

data_plan        which examples each share of a step reads; order: in which order a run visits them
permutation      a shuffle that is computed; mixture, weighted, bucketed: the other orders
loader           delivers the examples that were asked for; ahead: which are read next, and for whom
loader_process   the processes that read; dataset_changes: has the script changed its data set since they were
                 forked? scratch: a folder for their sockets; own_generators: random generators that a dataset keeps
example_digest   the values of an example, as a number
placement        a batch of any shape: to a device, or into page-locked memory; aligned: where its memory begins

records          any record of a file by its number; record_index: where each begins; data_file: the file's bytes
token_dataset    windows of a file of tokens; mds_dataset: Mosaic's shards
streams          what can only be read one after another; stream_check: does it go on where it says?
file_streams     lines and archives as streams; parquet_rows, hugging_face: likewise

elastic_loader   the loader for loops of one's own; torch_loader: torch's, whose waits for its processes end
audit            do a script's ranks read what they should? audit_rules: what is wrong with what they give;
                 audit_sources: are their data sets the same? in_a_fork: where loaders are looked at
"""
