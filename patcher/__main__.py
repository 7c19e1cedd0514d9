"""``python -m patcher``."""

from patcher.cli import main

if __name__ == "__main__":
    main()
