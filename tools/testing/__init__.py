"""The parts of tools/test, the installation of what they need, and the session that runs them."""
