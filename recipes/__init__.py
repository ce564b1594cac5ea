"""Scripts that people copy.

digits         recognises handwritten digits
gpt            a small GPT; gpt_data: token files for it; gpt_hf, gpt_lightning: under a Trainer
"""
