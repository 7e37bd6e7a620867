"""What loadgen and its tests use of nvidia-ml-py by name; `telemetry.nvml.Gpus` takes the module as a value."""

NVML_ERROR_DRIVER_NOT_LOADED: int

class NVMLError(Exception):
    _errcode_to_string: dict[int, str]
    def __init__(self, value: int) -> None: ...

def nvmlInit() -> None: ...
