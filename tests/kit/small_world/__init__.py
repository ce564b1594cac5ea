"""A small world in which every interleaving is tried: whoever is lost, of one view at most one side goes on.

Nodes crash, lose their hub, attach to another or become it; hubs ask the storage, publish views, and die; messages
arrive or do not; the workers of a view meet in it one after the other. Where a world has `kills`, all workers of a node
may end while its agent stays, and who has nothing begins anew from the storage; where it has `saves`, the coordinator
of a view that trains uploads at any speed. The rules are the product's, or wrong ones in their place (Rules).

    judge     the views in which steps are applied follow each other in one line
              nobody trains under an older claim than one under which newcomers have begun anew
              what was reported as saved is in the run's lineage, whatever is committed later
    goes_on   once nothing happens any more but what hubs, agents and workers do of themselves, somebody trains
"""
