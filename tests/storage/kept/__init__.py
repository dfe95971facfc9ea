"""State folders and configurations that released versions of Moongate wrote, and the program that makes one (`make.py`)."""
