"""The services that keep turns moving when nothing else does. One worker leads them; all are correct with two leaders."""
