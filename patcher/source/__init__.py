"""From bytes to trees: conditionals resolved, specifiers blanked, offsets kept."""
