"""nn.Modules and functions built on `fwp_fairseq.ops`."""
