"""SGLang's own dialect: `/generate` and the routes that look after a server."""
