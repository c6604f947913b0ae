"""For people who work on Perdure: the demo and the scripted provider. Nothing in here is installed with the product."""
