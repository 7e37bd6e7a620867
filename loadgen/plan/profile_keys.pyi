"""Keys of a profile, for type checkers: made by `python scripts/keyword_types.py`."""

from loadgen.settings.data_settings import DataKeys
from loadgen.settings.image_settings import ImageKeys
from loadgen.settings.load_settings import CancelKeys, ClassKeys, LoadKeys, NameKeys, ShapeKeys
from loadgen.settings.prompt_settings import LengthKeys, TextKeys, VariationKeys
from loadgen.settings.request_settings import FigureKeys, RequestKeys
from loadgen.settings.session_settings import SessionKeys
from loadgen.settings.trace_settings import TraceKeys

class ProfileKeys(
    SessionKeys,
    ShapeKeys,
    ClassKeys,
    CancelKeys,
    TraceKeys,
    TextKeys,
    VariationKeys,
    DataKeys,
    ImageKeys,
    NameKeys,
    LengthKeys,
    LoadKeys,
    RequestKeys,
    FigureKeys,
    frozen=True,
): ...
