"""What lies in storage: a state as JSON and tensors, tensors as files, names, manifests."""
