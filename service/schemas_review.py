"""The wire of review: listing, forgetting, correcting and carrying away one user's memories."""
