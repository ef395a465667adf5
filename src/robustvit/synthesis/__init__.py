"""Generated images: denoisers (EDM), sampling into shards, selection and quality."""

from robustvit.synthesis.denoise import Denoising as Denoising
from robustvit.synthesis.generate import generate as generate
from robustvit.synthesis.network import DdpmPlusPlus as DdpmPlusPlus
from robustvit.synthesis.quality import quality as quality
from robustvit.synthesis.score import score as score
