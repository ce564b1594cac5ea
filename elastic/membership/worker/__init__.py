"""A worker's end of membership: it says where it stands, hears which view it is in, and forms that view's group.

live        the channel to its agent
board       what workers say to each other while they form a group, as a store
rendezvous  one view for the ranks that torchrun started, without an agent of ours
missing     who of a view is gone
"""
