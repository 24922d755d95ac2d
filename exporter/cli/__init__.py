"""What can be typed: the commands with all their help, and what is made of them: completion and the manual page."""
