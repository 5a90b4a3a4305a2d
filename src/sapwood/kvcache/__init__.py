"""Where computed KV lives: the page pool, the prefix index over it, and (in `store`, which needs torch) the tensors themselves.

The index side knows token runs and page ids only. Importing this package registers the index kinds and loads no torch.
"""

from sapwood.kvcache import chunk, radix
from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.prefix import PrefixIndex, prefix_indexes

__all__ = ["PagePool", "PrefixIndex", "chunk", "prefix_indexes", "radix"]
