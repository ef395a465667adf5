"""`python -m robustvit`, and `torchrun -m robustvit`."""

from robustvit.cli.main import main

if __name__ == "__main__":
    main()
