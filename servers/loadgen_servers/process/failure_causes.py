"""Failure causes: what the log of a server that did not start, or died, means, and what to do."""

from __future__ import annotations

import re

_KILLED = (
    "killed, as the kernel does when the host's memory runs out (check dmesg): free host memory, or lower "
    "how much of it the engine takes"
)
PORT_TAKEN = "a port that it needs is taken: end the other server, or start again"
_PHRASES = {
    "port": PORT_TAKEN,
    "memory": "lower --context-len, share the model between GPUs (--tensor-parallel), or take a smaller one",
    "killed": _KILLED,
    "too_old": "the GPU cannot run this quantization ({0}): take another checkpoint or --quantization",
}

# Patterns of the log, one of which must match, and indented what they mean. The most specific first: an
# engine's last lines repeat in general words what earlier lines explain. {0} is the first group that matched.
_TABLE = r"""
# A container's engine.
Cannot connect to the Docker daemon
    the container engine is not running: start it
permission denied while trying to connect to the [Dd]ocker
    this user may not use docker: add it to the docker group, or use podman
pull access denied for (\S+?),|manifest for (\S+) not found|(\S+): image not known
    the image does not exist ({0}): check its name, or log in to its registry
could not select device driver|unresolvable CDI devices|[Uu]nknown runtime specified nvidia
    the container engine cannot pass GPUs through: install the NVIDIA Container Toolkit
# Its arguments.
error: (invalid argument: \S+)|error while handling argument "(\S+?)"
    llama-server rejects an argument ({0}): see its --help, and --server-args
error: (unrecognized arguments: .+|argument .+|ambiguous .+|the following .+ required.+)
    the engine rejects its arguments, {0}: see its --help, and --server-args
(?:max_model_len|context_length) \((\d+)\) is greater than the derived
    the model does not support a context of {0} tokens: lower --context-len
World size \((\d+)\) is larger than the number of available GPUs|invalid device ordinal
    there are fewer GPUs than --tensor-parallel needs: lower it, or check CUDA_VISIBLE_DEVICES
(\(\d+\) must be divisible by tensor[ -]parallel size \(\d+\))
    the model's heads {0}: take another --tensor-parallel
# The GPU and what was built for it.
driver on your system is too old(?: \(found version (\d+)\))?
CUDA driver version is insufficient for CUDA runtime version
provided PTX was compiled with an unsupported toolchain
    the NVIDIA driver is older than the CUDA that the engine was built for: update it, or install a build
    for an older CUDA
Failed to infer device type|No CUDA GPUs are available|no CUDA-capable device is detected
Torch not compiled with CUDA enabled|Found no NVIDIA driver|No accelerator \(CUDA
^.*NVMLError_LibraryNotFound: NVML Shared Library Not Found
    the engine finds no usable GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES, or install its build for this
    device
no kernel image is available for execution on the device|ptxas\S* fatal\s*: Value '\w+' is not
    the engine has no kernels for this GPU: install a build for its architecture, or a newer CUDA
Could not load any common_ops library|Error: No module named 'sgl_kernel|Error: .*from 'sgl_kernel
    SGLang's kernels are missing or of a different build: install the sgl-kernel for this CUDA and GPU
Error: No module named 'flash_attn|FlashAttention2 has been toggled on, but it cannot be used
    flash-attn is not installed: install it, or choose another attention backend with --server-args
ImportError: .*(undefined symbol: \w+)
    a library was built for another version of torch ({0}): reinstall the engine in a venv of its own
ImportError: (lib[\w.+-]+): cannot open shared object file
    the library {0} is missing: install the CUDA or system package that contains it
Could not find nvcc|nvcc: not found|CUDA_HOME environment variable is not set|CUDA_HOME is not set
    the engine compiles kernels and finds no CUDA toolkit: install it, and set CUDA_HOME
(?:Bfloat16|bfloat16) is only supported on GPUs with compute capability
    the GPU has no bfloat16: add --dtype half to --server-args
# Quantization.
Unknown quantization method: ([^\s.]+)|Invalid quantization method(?: on CPU)?: ([^\s.]+)
    the engine does not know the quantization {0}: see its --help, or update it
[Qq]uantization (?:method|scheme) .*(?:is not supported for|current GPU).*?(M\w+ capability: \d+)
    {too_old}
(\S+ quantization is currently not supported in \w+)
    {too_old}
(Marlin (?:W8A8 is not supported|does not support \w+ = \w+))
    {too_old}
(\S+ is not supported for quantization method \w+)
    {0}: pass a supported type with --dtype in --server-args
specified in the model config \((\S+)\) does not match the quantization method
    the checkpoint is quantized with {0}: leave out --quantization
# The model.
access a gated repo|GatedRepoError|Cannot access gated repo|is a gated repository
    the model is gated: ask for access on its page, and set HF_TOKEN
outgoing traffic has been disabled|[Cc]ouldn't connect to '?https?://\S+|LocalEntryNotFoundError
    the hub cannot be reached, and its cache does not have the model: download it, or give a directory
custom code which must be executed|requires you to execute the \w+ file
consider setting `trust_remote_code=True`
    the model comes with code of its own: review it, then add --trust-remote-code to --server-args
Model architectures (\[.*?\]) are not supported|Model architecture (\S+) is not supported in-tree
has model type `(\S+)` but Transformers does not recognize
    this version of the engine does not know the model ({0}): update the engine and transformers
does not appear to have a file named (\S*config\.json|params\.json)|(no config file found)
Unrecognized model in (\S+?)\.[ ]
    --model is not a model ({0}): give a directory with a config.json
[Cc]an(?:not|'t) find any (?:safetensors )?model weights with `(\S+)`
    the model's directory has no weights ({0}): download them
Can't load tokenizer for|Failed to load the tokenizer|Couldn't instantiate the backend tokenizer
    the tokenizer cannot be loaded: copy its files next to the weights, or pass --skip-tokenizer
(\S+) is not a local folder (?:and is not a valid model identifier|or a valid repository name)
RepositoryNotFoundError|Repository Not Found for url|HFValidationError
    the model exists neither as a directory nor on the hub: check --model
n_seq_max must be <= (\d+)
    llama.cpp has at most {0} slots: lower --max-running
invalid magic characters: .*, expected 'GGUF'
    the model is no GGUF file: check --model, or download it again
gguf_init_from_\w+: (failed to read [\w -]+)|tensor '(\S+)' data is not within the file bounds
    the GGUF file is incomplete ({0}): download it again, with all parts of a split one
unknown model architecture: '(\S+?)'
    this llama.cpp does not know the model's architecture ({0}): update it
gguf_init_from_file: failed to open GGUF file '(\S+)'
    the GGUF file cannot be opened ({0}): check --model
# Memory, the most general last: CUDA runs out of it for each of the reasons above it.
Free memory on device .{0,40}?\((\S+ ?GiB)\).* less than desired
    other processes hold the GPU's memory ({0} is free): end them, or lower --memory-fraction
Available memory on node \d+ \((\S+ ?GiB)\).* less than desired CPU
    other processes hold the host's memory ({0} is free): end them, or lower --memory-fraction
max seq len \((\d+)\).*? larger than|max_seq_len \((\d+)\).*? larger than
    the KV cache has no room for one request of {0} tokens: raise --memory-fraction, or {memory}
No available memory for the cache blocks|Please try to increase --mem-fraction-static
    the weights leave no GPU memory for the KV cache: raise --memory-fraction, or {memory}
CUDA out of memory occurred when warming up
    the GPU's memory ran out in the warm-up: lower --memory-fraction, or vLLM's --max-num-seqs
OutOfMemoryError|CUDA (?:error: )?out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaMalloc failed: out of memory
    the GPU's memory ran out: end what else uses it, or {memory}
can't allocate memory|Cannot allocate memory|std::bad_alloc|failed to allocate (?:\w+ )?buffer
    the host's memory ran out: free some, or lower how much of it the engine takes
proc\(s\): \{[^}]*: -9\b|exit ?code:? -9\b
    {killed}
No space left on device
    a disk is full, /tmp, /dev/shm or the hub's cache: free space on it
# Last, since a server that ends for another reason may leave its port to the next try.
error while attempting to bind|\[Errno (?:98|48)\]|EADDRINUSE|Port is already in use
port at \d+ is not available|couldn't bind HTTP server socket
    {port}
# At the very end: earlier ones did not stop it.
ModuleNotFoundError: No module named '([\w.]+)'\s*\Z
    its Python has no {0}: install the engine with all its dependencies
"""
# Log lines about optional parts that are missing.
_HARMLESS = re.compile(
    r"^(?!.*ERROR).*(?:\b(?:DEBUG|INFO|WARNING)\b|[a-z]Warning: |Ignore import error).*$", re.MULTILINE
)
_ROWS = re.findall(r"((?:\n\S.*)+)((?:\n .*)+)", re.sub(r"\n#.*", "", _TABLE))
_KNOWN = tuple(
    (
        re.compile("|".join(patterns.split("\n")[1:]), re.MULTILINE),
        " ".join(words.split()).format("{0}", **_PHRASES),
    )
    for patterns, words in _ROWS
)

_SIGNALS = {
    9: _KILLED,
    4: "it uses instructions that this CPU does not have: install a build for this CPU",
    11: "it crashed (segmentation fault): update the engine or the driver",
    7: "it ran out of shared memory (bus error): make /dev/shm larger",
}


def cause(log: str, exit_code: int | None) -> str:
    """What went wrong and what to do, in one sentence; "" where the cause is unknown.

    `log` is the end of the server's output. Without a known line there, the signal that ended it decides,
    given as a negative code or, of a container, as a code above 128.
    """
    relevant = _HARMLESS.sub("", log)
    for pattern, sentence in _KNOWN:
        if match := pattern.search(relevant):
            detail = next((group for group in match.groups() if group), "unnamed")
            return sentence.format(detail.strip())
    if exit_code is None:
        return ""
    return _SIGNALS.get(-exit_code if exit_code < 0 else exit_code - 128, "")
