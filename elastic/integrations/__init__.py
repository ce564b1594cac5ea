"""Frameworks with loops of their own. Nothing here is imported by the rest of elastic, nor needed by it.

accelerate, fabric, lightning, transformers  each what stands in for a class of that framework
torchmetrics                                 metrics over whole batches, in any loop over batches
lightning_loggers, transformers_loggers      the loggers that trainers have of their own
placing                                      what all ask before there is a run: devices, lengths, arguments
sharded, fsdp_arguments                      models that several workers hold: whole states; what transformers asks for
"""
