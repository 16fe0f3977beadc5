"""Every program that measures something."""

from __future__ import annotations

from dataclasses import dataclass

_BUNDLE = "a bundle and held-out text"
_DEVICE = "a CUDA device"
_PEERS = "Multi30k, a package index"


@dataclass(frozen=True)
class Program:
    """A module of ``benchmarks`` with ``main(options)``, and ``add_options(parser)`` if it has options.

    Its ``SMOKE_OPTIONS`` are those of tiny sizes that ``--smoke`` stands for, unless it has a ``--smoke`` of its own.

    Attributes:
        name: Its name on the command line.
        module: ``TOPIC.MODULE``, below ``benchmarks``.
        measures: What it measures, in a line.
        takes: About how long it takes on two cores.
        needs: What it needs that neither the repository nor its installation has. ``--all`` leaves out such a program.
    """

    name: str
    module: str
    measures: str
    takes: str
    needs: str = ""

    @property
    def topic(self) -> str:
        """The folder."""
        return self.module.partition(".")[0]


PROGRAMS = (
    Program("engine", "training.engine", "a step through DeepSpeed and in a bare loop; two ranks and one", "15 min"),
    Program("step", "training.step", "tokens per second of a bare training step; threads, allocator", "10 s"),
    Program("startup", "training.startup", "dst --help, and dst train up to its first update", "2 min"),
    Program("checkpoint", "training.checkpoint", "the time that a checkpoint costs training", "3 min"),
    Program("learning", "training.learning", "whether a recipe learns in fewer updates, over seeds", "4 h", "Multi30k"),
    Program("augment", "training.augment", "what augmentation costs", "5 min", "a corpus with a BPE vocabulary"),
    Program("exports", "decoding.exports", "exports of a bundle: outputs, BLEU, speed", "5 min", _BUNDLE),
    Program("importing", "decoding.importing", "dst import hf of 75M parameters: seconds, memory", "1 min"),
    Program("alignment", "decoding.alignment", "word alignments, guided and not, beside eflomal's", "10 min"),
    Program("parsing", "decoding.parsing", "a parser: F1 and speed", "2 min", "a parser and trees"),
    Program("messages", "decoding.messages", "placeholders of messages that translation keeps", "1 s", "translations"),
    Program("plan", "data.plan", "time and memory of planning an epoch of 4.5M and 36M pairs", "1 min"),
    Program("windows", "data.windows", "planning 10^9 pairs in windows, and how well the windows shuffle", "3 min"),
    Program("catalogues", "data.catalogues", "(makes a corpus) messages of programs", "1 min", "Debian's packages"),
    Program("loading", "data.loading", "how long a training step waits for its data", "2 min"),
    Program("padding", "data.padding", "padding of the padded attention backend", "10 s"),
    Program("corpus", "data.corpus", "building a corpus: encoding beside raw SentencePiece, memory", "3 min"),
    Program("growth", "data.growth", "the cost of each stage of a build as the corpus grows", "10 min"),
    Program("cluster", "data.cluster", "building a corpus on Dask and on a process pool", "3 min"),
    Program("serving", "serving.load", "dst serve under load, beside dst translate", "5 min", _BUNDLE),
    Program("outage", "resilience.outage", "training beside a tracking server that fails", "5 min"),
    Program("ranks", "resilience.ranks", "what votes and heartbeats of 2 to 128 ranks cost rank 0", "10 min"),
    Program("faults", "resilience.faults.command", "250 kills, stops, failing disks: bits compared", "40 min", "root"),
    Program("peers-training", "peers.training", "training speed beside three systems", "2 h", _PEERS),
    Program("peers-quality", "peers.quality", "BLEU after the same time, four systems", "90 min", _PEERS),
    Program("peers-decoding", "peers.decoding", "beam search beside four systems, after peers-quality", "1 h", _PEERS),
    Program("peers-preparing", "peers.preparing", "data preparation beside two systems", "5 min", _PEERS),
    Program("gpu", "gpu.suite", "training and decoding on one GPU", "9 min", _DEVICE),
    Program("gpu-kernels", "gpu.kernels", "errors of the kernels against float64, and their times", "1 min", _DEVICE),
    Program("gpu-attention", "gpu.attention", "attention in short sentences, four ways", "1 min", _DEVICE),
    Program("gpu-loss", "gpu.loss", "the loss through the softmax matrix, four ways", "1 min", _DEVICE),
    Program("gpu-traces", "gpu.traces", "the losses of the small runs of lease.sh beside the CPU's", "1 s", _DEVICE),
)
