"""What a person sees of a run; nothing here changes one."""
