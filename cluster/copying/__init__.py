"""Files to all hosts, each passing them on. All but `copy`, `task` and `program` run there: standard library only."""
