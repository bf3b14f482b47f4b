"""The package, its dependencies and its commands. Exact versions are in constraints.txt;
`bash scripts/test.sh` or `bash scripts/quickstart.sh` installs both."""

from setuptools import find_packages, setup

setup(
    name="fwp_fairseq",
    version="0.1.0",
    description="Linear Transformers Are Secretly Fast Weight Programmers, as a fairseq plugin",
    license="MIT",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["fwp_fairseq", "fwp_fairseq.*"]),
    install_requires=[
        "torch>=2.11",
        "ve-fairseq==0.12.3",  # imports as fairseq; the original 0.12.2 fails on Python >= 3.11
        "hydra-core>=1.3.2,<1.4",
        "omegaconf>=2.3",
        "numpy>=2",
        "pyyaml",
        "tqdm",
        "sacrebleu>=2",
        "sacremoses",
        "sentencepiece",
    ],
    extras_require={
        "plot": ["matplotlib"],
        "track": ["wandb", "tensorboard"],
        # torch brings triton along on GPU machines; the tests run its interpreter on CPUs too.
        "test": ["pytest", "pytest-xdist", "triton"],
    },
    entry_points={
        "console_scripts": [
            "fwp-eval-lm=fwp_fairseq.cli.eval_lm:main",
            "fwp-generate=fwp_fairseq.cli.generate:main",
            "fwp-bleu=fwp_fairseq.cli.bleu:main",
            "fwp-eval-translation=fwp_fairseq.cli.eval_translation:main",
            "fwp-report=fwp_fairseq.cli.report:main",
            "fwp-bench=fwp_fairseq.cli.bench:main",
            "fwp-sweep=fwp_fairseq.cli.sweep:main",
            "fwp-slurm=fwp_fairseq.cli.slurm:main",
        ],
    },
)
