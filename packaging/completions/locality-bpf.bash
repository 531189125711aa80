# Completions of bash, always those of the installed program.
eval "$(locality-bpf completions bash 2>/dev/null)"
