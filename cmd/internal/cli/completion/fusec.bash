# Completion of fusec for bash. fusec itself says what may follow; see complete.go.
_fusec() {
	local IFS=$'\n' words=() current line i
	for ((i = 1; i <= COMP_CWORD; i++)); do # bash has --flag=value as three words
		if [ "${COMP_WORDS[i]}" = = ] || [ "${COMP_WORDS[i - 1]}" = = ]; then
			words[${#words[@]} - 1]+=${COMP_WORDS[i]}
		else
			words+=("${COMP_WORDS[i]}")
		fi
	done
	current=${words[${#words[@]} - 1]#*=}
	COMPREPLY=()
	for line in $("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null); do
		case $line in
		:*)
			compopt -o filenames 2>/dev/null
			if [ "$line" = :dirs ]; then
				COMPREPLY+=($(compgen -d -- "$current"))
			else
				COMPREPLY+=($(compgen -f -X "!*?${line#:}" -- "$current"))
			fi
			;;
		*)
			line=${line%%$'\t'*}
			COMPREPLY+=("${line#*=}")
			;;
		esac
	done
}
complete -F _fusec fusec
