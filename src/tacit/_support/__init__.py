"""Internal helpers shared by all packages: argument checks, files, names, trees, console."""
