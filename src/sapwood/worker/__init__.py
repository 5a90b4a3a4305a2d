"""The process that composes scheduler and engine: one per rank. Nothing else imports both."""
