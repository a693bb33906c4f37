"""``python -m nlaformer`` is the command ``nlaformer``."""

from nlaformer.cli import main

if __name__ == "__main__":
    main()
