"""What lies in storage: a state as JSON and tensors, tensors as files, names, manifests.

document   what a state and its document are; tree makes one of the other, decoding goes back, marks: which entries
           differ from rank to rank
leaves     what a tree consists of, from its document alone
manifest   what a commit consists of; pieces: of all its tensors, in columns
draft      a save before its objects were written; shards: which piece of which tensor lies where
names      the keys of a run's folder
hashing    hashes, and documents that hash themselves
dtypes     of stored tensors, without torch; tensors: torch's, seen as bytes
"""
