"""Keys of a profile, for type checkers: made by `python scripts/keyword_types.py`."""

from loadgen.features.data.data_settings import DataKeys
from loadgen.features.images.image_settings import ImageKeys
from loadgen.features.sessions.session_settings import SessionKeys
from loadgen.features.texts.text_settings import TextKeys
from loadgen.features.traces.trace_settings import TraceKeys
from loadgen.settings.load_settings import CancelKeys, ClassKeys, LoadKeys, NameKeys, ShapeKeys
from loadgen.settings.prompt_settings import LengthKeys, VariationKeys
from loadgen.settings.request_settings import FigureKeys, RequestKeys

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
