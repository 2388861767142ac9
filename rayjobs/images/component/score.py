"""Job script: score images with a trained model, and write a table."""

import argparse

from imagemodels.ending import ends_clearly


def main() -> None:
    """Score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="Folder of a trained model.")
    parser.add_argument("--data", required=True, help="Folder of images.")
    parser.add_argument("--output", default="outputs", help="Folder for the table.")
    parser.add_argument("--format", choices=("parquet", "csv"), default="parquet")
    parser.add_argument("--batch-size", default=64)
    arguments = parser.parse_args()
    import os

    from imagemodels import networks, parameters
    from imagemodels.directory import open_any
    from imagemodels.scoring import score

    from rayjobs.injob.run import Run

    size = parameters.checked("batch_size", arguments.batch_size)
    model = networks.read_trained(arguments.model)
    images = open_any(arguments.data)
    target = os.path.join(arguments.output, f"scores.{arguments.format}")
    rows = score(model, images, target, batch_size=size)
    print(f"{target}: {rows} rows, {len(model.classes)} classes")
    Run.get_context().log("images", rows)


if __name__ == "__main__":
    with ends_clearly():
        main()
