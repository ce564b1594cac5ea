"""What other tools wrote, as a tree of tensors: files of torch.save, safetensors of Hugging Face, folders of DCP.

Whoever wrote it is not trusted. A pickle is read by torch's weights_only reader, or by one that makes nothing but our
own inert records (dcp.py); what either refuses is named, and nothing is imported.
"""
