"""What every room may use and no user needs: checks, files, names, trees, the terminal."""
