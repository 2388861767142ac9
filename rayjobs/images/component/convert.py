"""Job script: make an image directory from a folder or an archive."""

import argparse

from imagemodels.ending import ends_clearly


def main() -> None:
    """Convert."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="Folder, zip or tar archive.")
    parser.add_argument("--output", required=True, help="Folder for the images.")
    parser.add_argument("--validation-output", help="Folder for the validation images.")
    parser.add_argument("--validation-share", type=float, default=0.2)
    parser.add_argument("--random-seed", type=int, default=1)
    arguments = parser.parse_args()
    from imagemodels.converting import convert

    from rayjobs.injob.run import Run

    done = convert(
        arguments.data,
        arguments.output,
        validation=arguments.validation_output,
        share=arguments.validation_share,
        seed=arguments.random_seed,
        report="outputs/convert.json",
    )
    for name, why in done.unreadable.items():
        print(f"left out: {name} {why}")
    print(
        f"{done.training} images for training, {done.validation} for validation, "
        f"{len(done.classes)} classes; {len(done.unreadable)} unreadable, {done.ignored} others"
    )
    run = Run.get_context()
    run.log("images", done.training + done.validation)
    run.log("unreadable", len(done.unreadable))
    run.log("classes", len(done.classes))


if __name__ == "__main__":
    with ends_clearly():
        main()
