"""The stores, ours among them, behind one small seam: opened at a level, filled, counted, read.

The three levels are what an acknowledged record has survived: "os" the death of the process,
"interval" the same and a little later a power cut, "sync" a power cut. Each store says what it
calls that itself. Packages are imported when a store is opened, so that a missing one is a finding.
"""
