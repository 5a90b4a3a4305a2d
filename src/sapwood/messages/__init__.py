"""The contract between processes: typed msgspec structs, MessagePack on ZeroMQ, validated when decoded, never pickled."""
