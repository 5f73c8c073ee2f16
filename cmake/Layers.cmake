# One library per folder of src/, linked so that a folder can use only those below it.
#
# The rule is enforced by the compiler: a layer's headers are reached through a directory of its own,
# <build>/layers/<name>, which holds nothing but the link <name> -> src/<name>. So
# #include "codec/encode/encoder.h" resolves only in a target that links weightwire_codec.

# weightwire_layer(NAME <folder> [DEPENDS <folder>...] [LIBS <library>...])
# Defines weightwire_<folder> from all .cc files below src/<folder>, except main.cc. A folder that is not there is no target.
function(weightwire_layer)
  cmake_parse_arguments(LAYER "" "NAME" "DEPENDS;LIBS" ${ARGN})
  set(folder "${PROJECT_SOURCE_DIR}/src/${LAYER_NAME}")
  set(target "weightwire_${LAYER_NAME}")
  if(NOT IS_DIRECTORY "${folder}")
    return()
  endif()

  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/layers/${LAYER_NAME}")
  file(CREATE_LINK "${folder}" "${PROJECT_BINARY_DIR}/layers/${LAYER_NAME}/${LAYER_NAME}" SYMBOLIC)

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${folder}/*.cc")
  list(REMOVE_ITEM sources "${folder}/main.cc")
  set(visibility INTERFACE)  # CMake has no library without sources, except an INTERFACE one
  if(sources)
    add_library(${target} STATIC ${sources})
    # Files that include themselves, once for each instruction set, are compiled alone.
    set(simd ${sources})
    list(FILTER simd INCLUDE REGEX "_simd\\.cc$")
    set_source_files_properties(${simd} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set(visibility PUBLIC)
  else()
    add_library(${target} INTERFACE)
  endif()
  target_include_directories(${target} ${visibility} "${PROJECT_BINARY_DIR}/layers/${LAYER_NAME}")
  # The target all_verify_interface_header_sets compiles every header alone (./dev lint). Files named *-inl.h are left
  # out: they are included several times, inside a namespace that the including file opens.
  set(links "${PROJECT_BINARY_DIR}/layers/${LAYER_NAME}")
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${folder}" "${folder}/*.h")
  list(FILTER headers EXCLUDE REGEX "-inl\\.h$")
  list(TRANSFORM headers PREPEND "${links}/${LAYER_NAME}/")
  target_sources(${target} ${visibility} FILE_SET HEADERS BASE_DIRS "${links}" FILES ${headers})
  set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  list(TRANSFORM LAYER_DEPENDS PREPEND weightwire_)
  target_link_libraries(${target} ${visibility} ${LAYER_DEPENDS} ${LAYER_LIBS})
endfunction()

# weightwire_program(NAME <name> FROM <folder>)
# A program from src/<folder>/main.cc and the layer of that folder, at the top of the build folder, where people look
# for it. No program if the file does not exist.
function(weightwire_program)
  cmake_parse_arguments(PROGRAM "" "NAME;FROM" "" ${ARGN})
  file(GLOB main CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${PROGRAM_FROM}/main.cc")
  if(main)
    add_executable(${PROGRAM_NAME} ${main})
    target_link_libraries(${PROGRAM_NAME} PRIVATE weightwire_${PROGRAM_FROM})
    set_target_properties(${PROGRAM_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  endif()
endfunction()
