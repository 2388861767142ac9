"""Job script: write an untrained model directory."""

import argparse

from imagemodels.ending import ends_clearly


def main() -> None:
    """Write the model directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="Name of the network.")
    parser.add_argument("--weights", help="File with weights to start from.")
    parser.add_argument("--output", required=True, help="Folder for the untrained model.")
    arguments = parser.parse_args()
    from imagemodels.networks import save_untrained

    save_untrained(arguments.output, arguments.model, arguments.weights)
    print(f"{arguments.output}: {arguments.model}, untrained")


if __name__ == "__main__":
    with ends_clearly():
        main()
