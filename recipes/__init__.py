"""Scripts that people copy.

digits         recognises handwritten digits
gan            two networks that are updated in turn
recurrent      truncated back-propagation through time
gpt            a small GPT; gpt_data: token files for it; gpt_hf, gpt_lightning: under a Trainer
gpt_fsdp2      the same GPT, held by several workers together
diloco         the same GPT over a slow network
"""
