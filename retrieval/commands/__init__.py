"""The commands of ``sluice``, in rooms of their own; they import what they need when they run."""
