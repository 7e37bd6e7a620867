"""What the sensors use of nvidia-ml-py, typed; the package ships no types."""

NVML_ERROR_DRIVER_NOT_LOADED: int

class NVMLError(Exception):
    _errcode_to_string: dict[int, str]
    def __init__(self, value: int) -> None: ...

def nvmlInit() -> None: ...
