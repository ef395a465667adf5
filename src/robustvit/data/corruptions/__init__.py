"""Image corruptions: the 15 of ImageNet-C and its 4 extra ones. One import line a module is what registers it."""

from robustvit.data.corruptions.base import (
    GENERATOR as GENERATOR,
    SEVERITIES as SEVERITIES,
    AnyCorruption as AnyCorruption,
    Corruption as Corruption,
    Levels as Levels,
    ParameterSet as ParameterSet,
    Severity as Severity,
    corrupted as corrupted,
    parameters_for as parameters_for,
)
from robustvit.data.corruptions.blur import (
    DefocusBlur as DefocusBlur,
    GaussianBlur as GaussianBlur,
    GlassBlur as GlassBlur,
    MotionBlur as MotionBlur,
    ZoomBlur as ZoomBlur,
)
from robustvit.data.corruptions.digital import (
    Contrast as Contrast,
    ElasticTransform as ElasticTransform,
    JpegCompression as JpegCompression,
    Pixelate as Pixelate,
    Saturate as Saturate,
    jpeg as jpeg,
)
from robustvit.data.corruptions.noise import (
    GaussianNoise as GaussianNoise,
    ImpulseNoise as ImpulseNoise,
    ShotNoise as ShotNoise,
    SpeckleNoise as SpeckleNoise,
)
from robustvit.data.corruptions.parameters import EXTRA as EXTRA, GROUPS as GROUPS, STANDARD as STANDARD
from robustvit.data.corruptions.spatter import Spatter as Spatter
from robustvit.data.corruptions.weather import (
    Brightness as Brightness,
    Fog as Fog,
    Frost as Frost,
    Snow as Snow,
)
