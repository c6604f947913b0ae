"""What stands beside the product: the demo, benchmarks, and the servers that stand in for the outside world."""
