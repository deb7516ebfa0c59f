#compdef fusec
# Completion of fusec for zsh. fusec itself says what may follow; see complete.go.
_fusec() {
	local line kind=
	local -a list endings
	for line in "${(@f)$("${(Q)words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
		case $line in
		'') ;;
		:dirs) kind=-/ ;;
		:*) endings+=("${line#:}") ;;
		*) list+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
		esac
	done
	(( ${#list} )) && _describe fusec list
	compset -P '*='
	if (( ${#endings} )); then
		_files -g "*(${(j:|:)endings})"
	elif [[ -n $kind ]]; then
		_files $kind
	fi
}
if [[ ${funcstack[1]} == _fusec ]]; then _fusec; else compdef _fusec fusec; fi
