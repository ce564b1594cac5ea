"""Several hosts with real hubs, node reports and rules, on a network and a storage that are simulated."""
