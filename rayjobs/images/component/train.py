"""Job script: train an image classifier, in one process or in many."""

import argparse
import os
import shutil

from imagemodels.ending import ends_clearly

OUTPUT = "outputs/model"


def main() -> None:
    """Train."""
    from imagemodels import parameters

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", required=True, help="Folder with one folder per class.")
    parser.add_argument("--validation", required=True, help="The same classes, to evaluate with.")
    parser.add_argument("--model", default="resnet18", help="A network, or an untrained model.")
    parser.add_argument("--weights", help="File with weights to start from.")
    parser.add_argument("--output", help="Folder for a copy of the trained model.")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--augmentation", default="crop-flip")
    parser.add_argument("--cache", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", action="store_true", default=None)
    parser.add_argument("--gradient-parts", type=int, default=1)
    parser.add_argument("--backend")
    parser.add_argument("--register", help="Name under which the model is registered.")
    parser.add_argument("--onnx", action="store_true", help="Also export the model to ONNX.")
    parser.add_argument("--resume-from", help=argparse.SUPPRESS)  # handled by rayjobs.checkpoint
    parameters.add_to(parser)
    arguments = parser.parse_args()
    values = parameters.values_of(arguments)

    from imagemodels import evaluation, networks, onnx
    from imagemodels.decoding import AUGMENTATIONS, Preprocessing
    from imagemodels.directory import check_same_classes, open_labeled
    from imagemodels.errors import ParameterOutOfRangeError
    from imagemodels.loading import CACHES, Loader
    from imagemodels.ranks import Ranks
    from imagemodels.training import Settings, Training, set_up_determinism, summary_of

    from rayjobs.injob.run import Run

    for name, value, known in (
        ("augmentation", arguments.augmentation, AUGMENTATIONS),
        ("cache", arguments.cache, CACHES),
        ("precision", arguments.precision, ("auto", "fp32", "bf16")),
    ):
        if value not in known:
            raise ParameterOutOfRangeError(f"{name} is {value!r}; use one of: {', '.join(known)}")
    if arguments.gradient_parts < 1:
        raise ParameterOutOfRangeError(
            f"gradient_parts is {arguments.gradient_parts}; it must be 1 or more"
        )
    if os.path.isdir(arguments.model):
        if arguments.weights is not None:
            raise ParameterOutOfRangeError(
                f"weights is {arguments.weights!r}, but the untrained model {arguments.model!r} "
                f"names its own; give the name of a network with weights"
            )
        network, weights = networks.read_untrained(arguments.model)
    else:
        network, weights = arguments.model, arguments.weights
        networks.check_network(network)
    training = open_labeled(arguments.train)
    validation = open_labeled(arguments.validation)
    check_same_classes(training, validation)
    ranks = Ranks(arguments.backend)
    set_up_determinism(values["random_seed"])
    how = Preprocessing(image_size=arguments.image_size, augmentation=arguments.augmentation)
    settings = Settings(
        **values,
        checkpoint_every=arguments.checkpoint_every,
        cache=arguments.cache,
        threads=arguments.threads,
        precision=arguments.precision,
        compiles=arguments.compile,
        gradient_parts=arguments.gradient_parts,
    )
    module = networks.build(network, len(training.classes), weights)
    work = Training(module, training, validation, how=how, settings=settings, ranks=ranks)
    progress = work.run()

    loader = Loader(validation, how, work.plans["validation"])
    found = evaluation.evaluate(work.module, loader, ranks, batch_size=settings.batch_size)
    if ranks.is_first:
        run = Run.get_context()
        for path in evaluation.write(found, validation, loader, "outputs/images"):
            run.log_image(os.path.basename(path).partition(".")[0], path=path)
        table = evaluation.per_class(found.confusion, validation.classes)[:250]
        run.log_table("per_class", {name: [row[name] for row in table] for name in table[0]})
        facts = {**summary_of(progress), **values, "processes": ranks.world}
        networks.save_trained(
            OUTPUT,
            work.module.state_dict(),
            network=network,
            classes=training.classes,
            preprocessing=how,
            facts=facts,
        )
        if arguments.onnx:
            path, difference = onnx.export(networks.read_trained(OUTPUT), OUTPUT)
            print(f"{path}: differs from PyTorch by at most {difference:g}")
        if arguments.output:
            shutil.copytree(OUTPUT, arguments.output, dirs_exist_ok=True)
        if arguments.register:
            run.register_model(
                arguments.register,
                OUTPUT,
                properties={"network": network, "classes": str(len(training.classes))},
                model_framework="PyTorch",
            )
        print(f"best epoch {facts['epoch']}: top-1 {facts['top1']:.4f}, top-5 {facts['top5']:.4f}")
    loader.close()
    ranks.leave()


if __name__ == "__main__":
    with ends_clearly():
        main()
