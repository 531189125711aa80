# Completions of fish, always those of the installed program.
locality-bpf completions fish 2>/dev/null | source
