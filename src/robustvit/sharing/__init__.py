"""A run as a repository of the Hugging Face hub: weights, configuration and a model card with its numbers."""

from robustvit.sharing.card import model_card as model_card
from robustvit.sharing.push import push as push, write_repository as write_repository
