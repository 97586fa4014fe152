"""A Linux guest of Debian packages, and the lists of checks that it runs: see tools/linux-guest."""
