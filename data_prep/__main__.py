"""``python -m data_prep`` is the console script ``dst-prep``."""

from data_prep.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
